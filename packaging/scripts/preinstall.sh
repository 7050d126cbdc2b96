#!/bin/sh
# deb: install|upgrade, rpm: 1|2. Files of the package belong to telegraf's group, which
# telegraf's own package makes in the same way if it comes later.
set -e
getent group telegraf >/dev/null || groupadd -r telegraf
