"""The page of a report: built of blocks, with its look and what it does in a browser."""
