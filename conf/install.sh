#!/usr/bin/env bash
# Installs the daemons and tools with a Python environment of their own, or takes them away again.
#   PREFIX=/usr/local SYSCONFDIR=/etc [UNITDIR=...] [DESTDIR=...] [PYTHON=...] [SECURED=1] conf/install.sh install|uninstall
#
# With SECURED=1 the samples have TLS, logins and an authorizer, and keys for this host are made in
# kraftjbod/security, below the configuration. A package contains no keys: not with DESTDIR.
#
# Program files are replaced, and removed by uninstall. Configuration is copied only where there is
# none, and stays; so do data and the user. PYTHON is what the daemons will run with: with DESTDIR it
# must be at the same path on the machine that the files are for. Where the services' user could not
# run it, which is so of pyenv's below /root, the system's Python is taken, or the installation ends.
set -euo pipefail
cd "$(dirname "$0")/.."

: "${PREFIX:=/usr/local}" "${SYSCONFDIR:=/etc}" "${DESTDIR:=}" "${PYTHON:=python3}"
: "${UNITDIR:=$SYSCONFDIR/systemd/system}" "${SECURED:=}"
[[ -z $SECURED || -z $DESTDIR ]] || { echo "install: keys belong to one host: no SECURED=1 with DESTDIR" >&2; exit 2; }
for path in "$PREFIX" "$SYSCONFDIR" "$UNITDIR"; do
  [[ $path == /* ]] || { echo "install: $path: expected an absolute path" >&2; exit 2; }
done
home=$DESTDIR$PREFIX/lib/kraftjbod
docs=$DESTDIR$PREFIX/share/doc/kraftjbod
config=$DESTDIR$SYSCONFDIR/kraftjbod
bash_completions=$DESTDIR$PREFIX/share/bash-completion/completions
zsh_completions=$DESTDIR$PREFIX/share/zsh/site-functions
units=(kraftjbod-broker@.service kraftjbod-controller@.service kraftjbod.target kraftjbod-controllers.target)

# Only a system that runs is told of its new units.
is_live() { [[ -z $DESTDIR && -d /run/systemd/system && $(id -u) == 0 ]]; }

# Why services cannot run this Python, in words; nothing if they can. They have a user of their own and
# see no homes (ProtectHome=yes). Only root installs services.
why_not() {  # PYTHON
  local real
  real=$("$1" -c 'import os, sys, venv, ensurepip
if sys.version_info < (3, 11): sys.exit(1)
print(os.path.realpath(sys.executable))' 2>/dev/null) || { echo "it is no Python 3.11 or later with venv"; return; }
  if [[ $(id -u) != 0 ]]; then return; fi
  case $real in
    /root/* | /home/* | /run/user/*) echo "$real is in a home, where services see nothing" ;;
    # setpriv finds the program with root's capabilities still in hand; env has lost them.
    *) setpriv --reuid=65534 --regid=65534 --clear-groups --bounding-set=-all env "$real" -c '' 2>/dev/null \
         || echo "$real cannot be run by other users than root" ;;
  esac
}

choose_python() {
  local reason other
  reason=$(why_not "$PYTHON")
  [[ -n $reason ]] || return 0
  for other in /usr/bin/python3.1{1,2,3} /usr/bin/python3 /usr/local/bin/python3.1{1,2,3}; do
    if [[ -x $other && -z $(why_not "$other") ]]; then
      echo "install: $PYTHON is none for services ($reason): taking $other"
      PYTHON=$other
      return 0
    fi
  done
  echo "install: $PYTHON is none for services: $reason." \
    "Install a Python for all users (apt-get install python3 python3-venv), or name one:" \
    "make install BASE_PYTHON=/path/to/python3.11" >&2
  exit 1
}

fill_in() {  # SOURCE TARGET
  sed -e "s#@PREFIX@#$PREFIX#g" -e "s#@SYSCONFDIR@#$SYSCONFDIR#g" "$1" | install -D -m 644 /dev/stdin "$2"
}

keep() {  # SOURCE TARGET: configuration that is not there yet
  [[ -e $2 ]] || install -D -m 644 "$1" "$2"
}

install_all() {
  if [[ ! -x $home/bin/python || -n $(why_not "$home/bin/python") ]]; then
    choose_python
    "$PYTHON" -m venv --clear "$home"
  fi
  "$home/bin/python" -m pip install -q --upgrade --disable-pip-version-check -c requirements.lock .
  for launcher in bin/*; do
    sed 's#\.venv/#lib/kraftjbod/#g' "$launcher" | install -D -m 755 /dev/stdin "$DESTDIR$PREFIX/$launcher"
  done
  install -D -m 644 conf/completion/kraftjbod.bash "$bash_completions/kraftjbod.bash"
  # bash looks for a file of the command's name.
  for launcher in bin/*; do ln -sf kraftjbod.bash "$bash_completions/${launcher#bin/}"; done
  install -D -m 644 -t "$zsh_completions" conf/completion/_kraftjbod
  for unit in "${units[@]}"; do fill_in "conf/systemd/$unit" "$DESTDIR$UNITDIR/$unit"; done
  fill_in conf/systemd/kraftjbod.sysusers "$DESTDIR$SYSCONFDIR/sysusers.d/kraftjbod.conf"
  fill_in conf/systemd/kraftjbod.tmpfiles "$DESTDIR$SYSCONFDIR/tmpfiles.d/kraftjbod.conf"
  install -D -m 644 -t "$docs" README.md LICENSE
  install -D -m 644 -t "$docs/docs" docs/*.md
  install -D -m 644 -t "$docs/docs/pictures" docs/pictures/*
  if is_live; then
    # The group of the configuration's directory may read the keys of nodes, so the user comes first.
    systemd-sysusers "$SYSCONFDIR/sysusers.d/kraftjbod.conf"
    systemd-tmpfiles --create "$SYSCONFDIR/tmpfiles.d/kraftjbod.conf"
  fi
  (umask 022; "$home/bin/python" -m kraftjbod.local.local_tool samples --out "$config" \
    ${SECURED:+--secured} >/dev/null)
  keep conf/systemd/disks.conf "$DESTDIR$UNITDIR/kraftjbod-broker@.service.d/disks.conf"
  ! is_live || systemctl daemon-reload
  echo "install: programs in $DESTDIR$PREFIX, configuration in $config"
}

uninstall_all() {
  if is_live; then
    # Those that are loaded. Brokers end first: they ask a controller to move their leaders.
    systemctl stop 'kraftjbod-broker@*'
    systemctl stop 'kraftjbod*'
    mapfile -t enabled < <(find "$UNITDIR" -path '*.wants/kraftjbod*' -printf '%f\n' | sort -u)
    (( ${#enabled[@]} == 0 )) || systemctl disable --quiet "${enabled[@]}"
  fi
  for launcher in bin/*; do
    rm -f "$DESTDIR$PREFIX/$launcher" "$bash_completions/${launcher#bin/}"
  done
  rm -f "$bash_completions/kraftjbod.bash" "$zsh_completions/_kraftjbod"
  for unit in "${units[@]}"; do rm -f "$DESTDIR$UNITDIR/$unit"; done
  rm -f "$DESTDIR$SYSCONFDIR/sysusers.d/kraftjbod.conf" "$DESTDIR$SYSCONFDIR/tmpfiles.d/kraftjbod.conf"
  rm -rf "$docs"
  # Whatever else lies there, only an environment that this script made is removed whole.
  [[ ! -e $home/pyvenv.cfg ]] || rm -rf "$home"
  if is_live; then systemctl daemon-reload; fi
  echo "uninstall: done; $config, its data and the user kraftjbod are left"
}

case "${1:-}" in
  install) install_all ;;
  uninstall) uninstall_all ;;
  *) sed -n '2,3p' "$0" >&2; exit 2 ;;
esac
