"""How near the rehearsal comes to starts on a GPU that is really there, and what the trap costs."""
