"""What a model's update is made of: every term of the refined coordinate check, on a fixed probe batch."""
