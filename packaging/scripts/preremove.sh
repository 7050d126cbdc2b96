#!/bin/sh
# deb: remove, or upgrade and others; rpm: 0, or 1 for an upgrade. telegraf does not start
# when a program in its configuration is missing: the section goes first, and if it
# cannot, the package stays.
set -e
case "${1:-}" in
remove | 0) ;;
*) exit 0 ;;
esac
had=$(ls /etc/telegraf/telegraf.d/agp.conf 2>/dev/null || true)
/usr/lib/telegraf-agp/telegraf-agp setup remove
if [ -n "$had" ] && [ -d /run/systemd/system ]; then
	systemctl try-restart telegraf || true
fi
