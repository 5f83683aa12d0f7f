"""What the theory predicts: exponents of every measured quantity, as data and by simulation."""
