"""The addresses of the API that answer once; those that stream are in `live`."""
