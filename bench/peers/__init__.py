"""The stores beside which gpkvs is measured, and gpkvs itself, behind one interface (contender.py)."""
