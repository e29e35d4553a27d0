"""One calibration from end to end: read, measure, decide, write, prove. Each step a module."""
