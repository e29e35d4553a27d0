"""Pure: changes that give a configuration the memory that it lacks, with their cost."""
