"""What sweeps found, as figures: the learning-rate transfer, how scores scale with width, tuned multipliers."""
