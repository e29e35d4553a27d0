"""What the text of a request takes, without vLLM: its checkpoint's own template and tokenizer."""
