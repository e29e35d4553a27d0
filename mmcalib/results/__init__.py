"""The documents that are printed and kept, and their parts: values, which no file is read for."""
