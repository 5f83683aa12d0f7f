"""Sweeps over hyperparameters: what was run, and what came out."""
