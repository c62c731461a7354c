"""Who may connect: the socket, limits on connections, the token, and the names the server answers to."""
