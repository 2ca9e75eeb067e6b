"""The shells themselves complete what `nczarr completion` says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from nczarr_xarray.cli import completion
from nczarr_xarray.cli.commands import COMMANDS
from nczarr_xarray.cli.main import build_parser, main
from tests.support.marks import slow_cases_but

SHELLS = ("bash", "zsh", "fish")

#: Words before the cursor, what may stand there, and what may not.
CASES = [
    ("", {"info", "dump", "completion"}, {"bash", "sst.nc"}),
    ("com", {"compare", "completion"}, {"info"}),
    ("completion ", {"bash", "zsh", "fish"}, {"info"}),
    ("copy --compat ", {"4.9.3", "4.9.2", "4.8.1"}, {"1.13", "sst.nc"}),
    ("copy a.nc b --format ", {"NETCDF4", "Zarr3"}, {"4.9.3", "sst.nc"}),
    ("copy --c", {"--chunks", "--compat", "--cfa-version"}, {"--overwrite"}),
    ("convert-refs a.nca b.nca --cfa-version ", {"0.4", "0.6.2", "1.13"}, {"4.9.3"}),
    ("info ", {"sst.nc", "sst.zarr"}, {"dump"}),
    ("copy --digests ss", {"sst.nc"}, {"--chunks"}),
    ("trace -- python ", {"sst.nc"}, {"info"}),
    ("copy --slice x=1: --sl", {"--slice"}, {"--chunks"}),
    ("compare --var v --va", {"--var"}, {"--json"}),
]


script = cache(completion.script)


def needs(shell: str) -> str:
    if os.name == "nt" or not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    return shell


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sst.nc").touch()
    (tmp_path / "sst.zarr").touch()
    for shell in SHELLS:
        (tmp_path / f".{shell}").write_text(script(shell))
    return tmp_path


def run(folder: Path, *command: str) -> set[str]:
    """What a command prints, line by line."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "TERM": "dumb"}
    done = subprocess.run(
        command, cwd=folder, env=environment, check=True, capture_output=True, text=True
    )
    assert done.stderr == ""
    return {line.partition("\t")[0] for line in done.stdout.splitlines()}


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_can_parse_its_script(shell: str, folder: Path) -> None:
    assert run(folder, needs(shell), "-n", f".{shell}") == set()


@pytest.mark.parametrize(("line", "there", "absent"), CASES)
def test_bash_completes(line: str, there: set[str], absent: set[str], folder: Path) -> None:
    needs("bash")
    # what readline does for `complete -o default`, too
    ask = (
        "source .bash; COMP_WORDS=(nczarr $1); [[ $1 == *[!' '] ]] || COMP_WORDS+=('');"
        "COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _nczarr;"
        "((${#COMPREPLY[@]})) || COMPREPLY=($(compgen -f -- ${COMP_WORDS[COMP_CWORD]}));"
        "printf '%s\\n' ${COMPREPLY[@]}"
    )
    found = run(folder, "bash", "--norc", "-c", ask, "bash", line)
    assert there <= found
    assert not absent & found


@pytest.mark.parametrize(("line", "there", "absent"), slow_cases_but(CASES, "copy --compat "))
def test_fish_completes(line: str, there: set[str], absent: set[str], folder: Path) -> None:
    needs("fish")
    found = run(
        folder, "fish", "--no-config", "-c", "source .fish; complete -C $argv", f"nczarr {line}"
    )
    assert there <= found
    assert not absent & found


#: Completes $LINE as soon as there is a line to edit, and writes what fits to `found`.
ZSHRC = """
autoload -U compinit; compinit -D -u
source .zsh
compadd() {
    local -a fits
    [[ "$*" == *-[OAD]\\ * ]] || { builtin compadd -O fits "$@"; print -rl -- $fits >> found }
    builtin compadd "$@"
}
quiet() { compstate[list]= compstate[insert]= }
comppostfuncs=(quiet)
zle-line-init() { BUFFER=$LINE; CURSOR=$#BUFFER; zle complete-word; exit }
zle -N zle-line-init
"""


@pytest.mark.slow
@pytest.mark.parametrize(("line", "there", "absent"), CASES)
def test_zsh_completes(line: str, there: set[str], absent: set[str], folder: Path) -> None:
    (folder / ".zshrc").write_text(ZSHRC)
    (folder / "found").touch()
    path = needs("zsh")
    home = {"HOME": str(folder), "TERM": "dumb", "LINE": f"nczarr {line}"}
    ours, theirs = os.openpty()  # zsh completes on terminals only
    try:
        subprocess.run(
            [path, "-o", "no_global_rcs", "-i"],
            cwd=folder,
            env={"PATH": os.environ["PATH"], **home},
            stdin=theirs,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            check=True,
            timeout=120,
        )
    finally:
        os.close(ours)
        os.close(theirs)
    found = set((folder / "found").read_text().splitlines())
    assert there <= found
    assert not absent & found


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_every_command_is_in_the_scripts(command: str) -> None:
    texts = {shell: script(shell) for shell in SHELLS}
    (commands,) = build_parser([command])._subparsers._group_actions  # type: ignore[union-attr]
    flags = [f for a in commands.choices[command]._actions for f in a.option_strings]  # type: ignore[index]
    in_bash = re.search(rf" {command}\) options='(.+?)'", texts["bash"])
    assert in_bash is not None
    assert in_bash[1].split() == flags
    for flag in flags:
        assert f"'{flag}[" in texts["zsh"] or f"*{flag}[" in texts["zsh"]
        name = f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
        assert re.search(rf"from {command}'.* {name} ", texts["fish"])


def test_the_script_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    assert capsys.readouterr().out == script("bash")
