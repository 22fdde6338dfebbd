"""Copying a store that no process has open into a new one, of today's format and other sizes (`gpkvs copy`)."""
