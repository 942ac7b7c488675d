# Sourced by the other scripts: the repository's folder, and its environment in .venv.
# shellcheck shell=bash

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
venv=$repository/.venv
stamp=$venv/.torchlayout

say() { printf '==> %s\n' "$*" >&2; }
fail() {
    printf '%s\n' "$*" >&2
    exit 2
}

# The first Python that torch and this project support.
find_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11 python3.10 python; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    fail "no Python 3.10 or later is on the PATH; install one, or name it: PYTHON=/path/to/python $0"
}

# What the environment was made from; another answer means that it has to be brought up to date.
fingerprint() {
    printf '%s\n' "$repository"
    cat "$repository/pyproject.toml" "$repository/constraints.txt" | cksum
}

# Makes .venv, or brings it up to date; where it is up to date this takes no time.
# The stamp is written last, so an interrupted installation is taken up again by the next call.
environment() {
    local made
    made=$(fingerprint)
    if [ -x "$venv/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$made" ]; then
        return
    fi
    if [ -f "$stamp" ] && [ "$(head -n 1 "$stamp")" != "$repository" ]; then
        say "the folder was copied or moved; making .venv anew"
        rm -rf "$venv"
    fi
    rm -f "$stamp"
    export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
    if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        local python
        python=$(find_python)
        say "making .venv with $("$python" --version)"
        rm -rf "$venv"
        "$python" -m venv "$venv" || {
            rm -rf "$venv"
            fail "$python -m venv failed; on Debian and Ubuntu it needs the package python3-venv"
        }
    fi
    local pip=("$venv/bin/python" -m pip install --quiet --progress-bar off -c "$repository/constraints.txt")
    # torch first and by itself: it is most of the download, and it comes from wherever pip is set up to look.
    say "installing torch (the large part; this can take minutes)"
    "${pip[@]}" torch==2.13.0
    say "installing torchlayout and what it needs"
    "${pip[@]}" -e "$repository[dev,plan,text]"
    printf '%s\n' "$made" >"$stamp.half"
    mv "$stamp.half" "$stamp"
    say "the environment is ready"
}
