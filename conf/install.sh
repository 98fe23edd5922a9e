#!/usr/bin/env bash
# Installs the daemons and tools with a Python environment of their own, or takes them away again.
#   PREFIX=/usr/local SYSCONFDIR=/etc [UNITDIR=...] [DESTDIR=...] [PYTHON=...] conf/install.sh install|uninstall
#
# Program files are replaced, and removed by uninstall. Configuration is copied only where there is
# none, and stays; so do data and the user. PYTHON is what the daemons will run with: with DESTDIR it
# must be at the same path on the machine that the files are for.
set -euo pipefail
cd "$(dirname "$0")/.."

: "${PREFIX:=/usr/local}" "${SYSCONFDIR:=/etc}" "${DESTDIR:=}" "${PYTHON:=python3}"
: "${UNITDIR:=$SYSCONFDIR/systemd/system}"
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

fill_in() {  # SOURCE TARGET
  sed -e "s#@PREFIX@#$PREFIX#g" -e "s#@SYSCONFDIR@#$SYSCONFDIR#g" "$1" | install -D -m 644 /dev/stdin "$2"
}

keep() {  # SOURCE TARGET: configuration that is not there yet
  [[ -e $2 ]] || install -D -m 644 "$1" "$2"
}

install_all() {
  [[ -x $home/bin/python ]] || "$PYTHON" -m venv "$home"
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
  (umask 022; "$home/bin/python" -m kraftjbod.local.local_tool samples --out "$config" >/dev/null)
  keep conf/systemd/disks.conf "$DESTDIR$UNITDIR/kraftjbod-broker@.service.d/disks.conf"
  if is_live; then
    systemd-sysusers "$SYSCONFDIR/sysusers.d/kraftjbod.conf"
    systemd-tmpfiles --create "$SYSCONFDIR/tmpfiles.d/kraftjbod.conf"
    systemctl daemon-reload
  fi
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
