"""``nczarr completion``: a script by which bash, zsh or fish completes the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import Any

from nczarr_xarray.cli.commands import COMMANDS, NewParser, add_command

#: Where each shell looks for the script.
_PLACES = {
    "bash": "~/.local/share/bash-completion/completions/nczarr",
    "zsh": "a folder of $fpath, as _nczarr",
    "fish": "~/.config/fish/completions/nczarr.fish",
}


def add_parser(new: NewParser) -> None:
    """Make the parser of ``nczarr completion``."""
    places = "; ".join(f"{shell}: {place}" for shell, place in _PLACES.items())
    parser = new(
        examples=["nczarr completion bash > ~/.local/share/bash-completion/completions/nczarr"],
        description="Print a script by which a shell completes commands, options and their values. "
        f"Write it to where the shell looks for it ({places}), or read it in a running shell: "
        'eval "$(nczarr completion bash)".',
    )
    parser.add_argument("shell", metavar="SHELL", choices=tuple(_PLACES), help="bash, zsh or fish")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    sys.stdout.write(script(args.shell))
    return 0


def script(shell: str) -> str:
    """Return the script for a shell, made from the parsers of all commands."""
    arguments = {name: _arguments(name) for name in COMMANDS}
    return "".join(f"{line}\n" for line in _SHELLS[shell](arguments))


class _Parser(argparse.ArgumentParser):
    def arguments(self) -> list[argparse.Action]:
        return [action for action in self._actions if action.help != argparse.SUPPRESS]


Arguments = dict[str, list[argparse.Action]]


def _arguments(command: str) -> list[argparse.Action]:
    """Return the arguments of a command."""
    made: list[_Parser] = []

    def make(**options: Any) -> _Parser:
        made.append(_Parser(**options))
        return made[0]

    add_command(command, make)
    return made[0].arguments()


def _values(argument: argparse.Action) -> list[str]:
    """Return the values that an argument may have; empty if it may have others, or none."""
    return list(map(str, argument.choices or ()))


def _has_value(argument: argparse.Action) -> bool:
    return argument.nargs != 0


def _help(argument: argparse.Action) -> str:
    return (argument.help or "") % vars(argument)


def _bash(commands: Arguments) -> Iterator[str]:
    yield from (
        "# completes nczarr in bash",
        "_nczarr() {",
        "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}",
        "    local command= options= values= i",
        "    for ((i = 1; i < COMP_CWORD; i++)); do",
        "        case ${COMP_WORDS[i]} in",
        "            --) COMPREPLY=(); return ;;",
        "            -*) ;;",
        "            *) command=${command:-${COMP_WORDS[i]}} ;;",
        "        esac",
        "    done",
        '    case "$command" in',
        f"        '') options='--help --version' values='{' '.join(commands)}' ;;",
    )
    for name, arguments in commands.items():
        options = " ".join(flag for argument in arguments for flag in argument.option_strings)
        first = " ".join(v for a in arguments if not a.option_strings for v in _values(a))
        yield f"        {name}) options='{options}' values='{first}' ;;"
    yield from ("    esac", '    case "$command $before" in')
    for name, arguments in commands.items():
        behind: dict[str, list[str]] = {}  # words for each list of values behind them
        for argument in arguments:
            if not (argument.option_strings and _has_value(argument)):
                continue
            flags = (f"'{name} {flag}'" for flag in argument.option_strings)
            behind.setdefault(" ".join(_values(argument)), []).extend(flags)
        for values, words in behind.items():
            yield f"        {'|'.join(words)}) options= values='{values}' ;;"
    yield from (
        "    esac",
        '    [[ $word != -* ]] || values="$options"',
        "    # no values: names of files, by -o default",
        '    COMPREPLY=($(compgen -W "$values" -- "$word"))',
        "}",
        "complete -o bashdefault -o default -F _nczarr nczarr",
    )


def _zsh(commands: Arguments) -> Iterator[str]:
    yield from (
        "#compdef nczarr",
        "_nczarr() {",
        "    local curcontext=$curcontext state line",
        "    _arguments -C '(- *)'{-h,--help}'[show help]' '(- *)--version[show the version]' \\",
        "        '1:command:->command' '*::argument:->argument'",
        "    case $state in",
        "        command)",
        "            local -a commands=(",
    )
    for name, what in COMMANDS.items():
        yield f"                '{name}:{_in_zsh(what)}'"
    yield from (
        "            )",
        "            _describe command commands ;;",
        "        argument)",
        "            case $words[1] in",
    )
    for name, arguments in commands.items():
        yield f"                {name}) _arguments \\"
        yield from (f"                    {_zsh_argument(a)} \\" for a in arguments)
        yield "                    ;;"
    yield from (
        "            esac ;;",
        "    esac",
        "}",
        "# loaded by its name it is called, read by eval it is declared",
        'if [[ $funcstack[1] == _nczarr ]]; then _nczarr "$@"; else compdef _nczarr nczarr; fi',
    )


def _zsh_argument(argument: argparse.Action) -> str:
    values = _values(argument)
    files = f"({' '.join(values)})" if values else "_files"
    names = argument.metavar if isinstance(argument.metavar, tuple) else (argument.metavar,)
    value = "".join(f":{_in_zsh(name or argument.dest)}:{files}" for name in names)
    if not argument.option_strings:
        before = {"*": "*", "+": "*", "?": ":"}.get(str(argument.nargs), "")
        return f"'{before}{value}'"
    if not _has_value(argument):
        value = ""
    more = "*" if "may be repeated" in _help(argument) else ""  # else zsh offers it once
    return " ".join(
        f"'{more}{flag}[{_in_zsh(_help(argument))}]{value}'" for flag in argument.option_strings
    )


def _in_zsh(text: str) -> str:
    for special in "\\[]:":
        text = text.replace(special, f"\\{special}")
    return text.replace("'", "'\\''")


def _fish(commands: Arguments) -> Iterator[str]:
    yield "# completes nczarr in fish"
    first = "complete -c nczarr -n __fish_use_subcommand"
    yield f"{first} -s h -l help -d 'show help'"
    yield f"{first} -l version -d 'show the version'"
    for name, what in COMMANDS.items():
        yield f"{first} -f -a {name} -d {_in_fish(what)}"
    for name, arguments in commands.items():
        here = f"complete -c nczarr -n '__fish_seen_subcommand_from {name}'"
        for argument in arguments:
            values = " ".join(_values(argument))
            if not argument.option_strings:
                if values:
                    yield f"{here} -f -a '{values}'"
                continue
            flags = " ".join(
                f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
                for flag in argument.option_strings
            )
            value = f" -x -a '{values}'" if values else " -r" if _has_value(argument) else ""
            yield f"{here} {flags}{value} -d {_in_fish(_help(argument))}"


def _in_fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_SHELLS: dict[str, Callable[[Arguments], Iterator[str]]] = {
    "bash": _bash,
    "zsh": _zsh,
    "fish": _fish,
}
