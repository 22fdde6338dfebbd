"""What users give as arrays, strings and numbers becomes columns, and columns become what users get."""
