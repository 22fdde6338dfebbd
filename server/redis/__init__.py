"""The Redis protocol: what the native door does not answer by itself.

words of a command -> session -> command table -> run over an overlay -> one request of guards and writes -> reply

Rooms, each of which imports those behind it: `commands`, a file for each kind; `sessions`, one for each connection;
`execution`, from the table of commands to the request; `protocol`, words and replies. `service.py` has all of them.
"""
