#!/bin/sh
# deb: purge, remove and others; rpm: 0, or 1 for an upgrade. Only purge takes what was
# configured; the group stays, it is telegraf's.
set -e
if [ "${1:-}" = purge ]; then
	rm -rf /etc/telegraf-agp /var/lib/telegraf-agp
	rm -f /etc/telegraf/telegraf.d/agp.conf.disabled /etc/telegraf/telegraf.d/agp.conf.disabled.*
fi
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload || true
fi
