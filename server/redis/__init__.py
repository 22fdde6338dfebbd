"""The Redis protocol: what the native door does not answer by itself.

words of a command -> session -> command table -> run over an overlay -> one request of guards and writes -> reply
"""
