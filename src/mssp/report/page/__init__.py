"""The HTML page of a report: its blocks, its template, its style and its script."""
