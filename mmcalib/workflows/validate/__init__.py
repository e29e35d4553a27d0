"""`mmcalib validate`: check that a configuration takes effect and reserves enough memory."""
