"""The same answers as tools for an assistant, by the Model Context Protocol."""
