"""What servers, proxies and benchmarks leave of the requests that they saw: a module for each form,
which knows an entry of it by its fields.
"""

from typing import Final

# In the order in which an entry is held against them.
NAMES: Final = ("litellm", "langfuse", "sharegpt", "openai", "vllm", "bench")
# The first that knows the entry.
AUTO: Final = "auto"
