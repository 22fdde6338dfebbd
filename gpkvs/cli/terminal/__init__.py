"""What users see: output, progress, errors and exit statuses; and what an interrupt does."""
