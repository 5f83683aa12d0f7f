"""The single-site equations of the limit: a file for each regime, and the sites that all regimes share."""
