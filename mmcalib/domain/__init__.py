"""Values of the domain, all frozen: nothing here reads, asks or knows of a wire."""
