"""What users give: options, settings, the connection to a server."""
