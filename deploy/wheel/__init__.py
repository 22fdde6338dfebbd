"""How a publisher makes the wheels of gpkvs (docs/packaging.md): ``make wheel`` runs it."""
