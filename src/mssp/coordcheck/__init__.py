"""The refined coordinate check: run, fit, and judge."""
