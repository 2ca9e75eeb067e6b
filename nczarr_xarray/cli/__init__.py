"""The command line, ``nczarr``: one module per subcommand."""
