# No Python names: the module serves the other compiled ones.
