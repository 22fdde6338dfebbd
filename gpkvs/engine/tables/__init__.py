"""Tables: made and dropped, grown, scanned, and keys that expire."""
