"""The options, each declared once for the command line and the library; light to import."""
