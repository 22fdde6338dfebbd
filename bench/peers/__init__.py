"""The stores that gpkvs is measured against, and gpkvs itself, behind one interface."""
