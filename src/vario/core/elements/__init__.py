"""What the elements of a tensor are: counted by power of two, rounded to a lower precision, largest by channel."""
