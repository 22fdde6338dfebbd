"""Results: kept as JSON, shown as tables and plots."""
