"""Programs that make the paper's tables and figures: one file each, run from a checkout, not installed."""
