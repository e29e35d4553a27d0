"""From a census to engine arguments: measured, explored, chosen, each with vLLM's own budget."""
