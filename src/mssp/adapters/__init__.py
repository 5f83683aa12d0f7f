"""The models and trainers people already have: what their parameters are, and how a plan reaches them."""
