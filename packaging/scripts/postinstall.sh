#!/bin/sh
# deb: configure, or abort-... where nothing was changed; rpm: 1 (first version) and up.
set -e
case "${1:-}" in
configure | [1-9]*) ;;
*) exit 0 ;;
esac
PATH="$PATH:/usr/sbin:/sbin"
program=/usr/lib/telegraf-agp/telegraf-agp

# Capabilities belong to the file, and every version is a new file. Where this machine
# does not have one of them (a container, an old kernel) the program would not even start
# with them.
chown root:telegraf $program
chmod 0750 $program
# It may be older than the package.
chown root:telegraf /var/lib/telegraf-agp
chmod 0770 /var/lib/telegraf-agp
if ! command -v setcap >/dev/null; then
	echo "telegraf-agp: no setcap (package libcap2-bin or libcap): interfaces cannot be captured from, files can" >&2
elif ! setcap cap_net_raw,cap_net_admin,cap_bpf,cap_perfmon,cap_ipc_lock+ep $program; then
	echo "telegraf-agp: capabilities cannot be set here: interfaces cannot be captured from, files can" >&2
elif ! $program version >/dev/null 2>&1; then
	setcap -r $program
	echo "telegraf-agp: this machine does not grant the capabilities: interfaces cannot be captured from, files can" >&2
fi

# A section of telegraf that no longer loads is said here and does not stop the upgrade: it was left as it is.
$program setup configure || echo "telegraf-agp: see above; the files named there were left as they are" >&2

if [ -d /run/systemd/system ]; then
	systemctl daemon-reload || true
	[ ! -e /etc/telegraf/telegraf.d/agp.conf ] || systemctl try-restart telegraf || true
fi
[ -e /etc/telegraf/telegraf.d/agp.conf ] || echo "telegraf-agp: edit /etc/telegraf-agp/agp.conf, then: telegraf-agp enable"
