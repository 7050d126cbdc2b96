package agent

import (
	_ "github.com/influxdata/telegraf/plugins/inputs/nats_consumer" // input
	_ "github.com/influxdata/telegraf/plugins/outputs/nats"         // output
)
