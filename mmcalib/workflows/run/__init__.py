"""The whole job, and the document that it fills."""
