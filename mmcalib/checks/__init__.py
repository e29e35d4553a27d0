"""What `run` and `validate` judge a configuration by: each check with its identity."""
