"""Who may do what: users, their passwords, tokens and rights."""
