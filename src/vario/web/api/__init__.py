"""What an address of the API is: its parameters, its response, and the description made from both."""
