"""``nczarr copy``: what is copied (`selection`), and a module for each kind of target (`kinds`)."""
