"""Pure: from measured costs to limits. No disk, clock, environment, torch or vLLM in here."""
