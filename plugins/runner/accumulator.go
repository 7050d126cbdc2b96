package runner

import (
	"time"

	"github.com/influxdata/telegraf"
	"github.com/influxdata/telegraf/metric"
)

// accumulator is what the plugin sees of the queue. Safe for concurrent use,
// except that SetPrecision must come before the first metric, as in telegraf.
type accumulator struct {
	queue     *queue
	stats     *stats
	log       *Logger
	now       func() time.Time
	precision time.Duration
}

var _ telegraf.Accumulator = (*accumulator)(nil)

func (a *accumulator) AddFields(name string, fields map[string]interface{}, tags map[string]string, t ...time.Time) {
	a.queue.addFields(name, tags, fields, a.time(t), false, true)
}

func (a *accumulator) AddGauge(name string, fields map[string]interface{}, tags map[string]string, t ...time.Time) {
	a.queue.addFields(name, tags, fields, a.time(t), false, true)
}

func (a *accumulator) AddCounter(name string, fields map[string]interface{}, tags map[string]string, t ...time.Time) {
	a.queue.addFields(name, tags, fields, a.time(t), true, true)
}

func (a *accumulator) AddSummary(name string, fields map[string]interface{}, tags map[string]string, t ...time.Time) {
	a.queue.addFields(name, tags, fields, a.time(t), false, true)
}

func (a *accumulator) AddHistogram(name string, fields map[string]interface{}, tags map[string]string, t ...time.Time) {
	a.queue.addFields(name, tags, fields, a.time(t), false, true)
}

// AddMetric accepts a tracked metric when it is queued and rejects it when it is
// dropped; a line on its way through the pipe is not tracked any further.
func (a *accumulator) AddMetric(m telegraf.Metric) {
	if a.queue.addMetric(m, a.round(m.Time())) {
		m.Accept()
	} else {
		m.Reject()
	}
}

func (a *accumulator) SetPrecision(precision time.Duration) { a.precision = precision }

func (a *accumulator) AddError(err error) {
	if err == nil {
		return
	}
	a.stats.failed(a.now())
	a.log.limited("error in plugin", telegraf.Error, err.Error())
}

func (a *accumulator) WithTracking(maxTracked int) telegraf.TrackingAccumulator {
	return &tracking{accumulator: a, delivered: make(chan telegraf.DeliveryInfo, maxTracked)}
}

func (a *accumulator) time(t []time.Time) time.Time {
	if len(t) > 0 {
		return a.round(t[0])
	}
	return a.round(a.now())
}

func (a *accumulator) round(t time.Time) time.Time {
	if a.precision <= time.Nanosecond {
		return t
	}
	return t.Round(a.precision)
}

type tracking struct {
	*accumulator
	delivered chan telegraf.DeliveryInfo
}

func (t *tracking) AddTrackingMetric(m telegraf.Metric) telegraf.TrackingID {
	tracked, id := metric.WithTracking(m, t.deliver)
	t.AddMetric(tracked)
	return id
}

func (t *tracking) AddTrackingMetricGroup(group []telegraf.Metric) telegraf.TrackingID {
	tracked, id := metric.WithGroupTracking(group, t.deliver)
	for _, m := range tracked {
		t.AddMetric(m)
	}
	return id
}

func (t *tracking) Delivered() <-chan telegraf.DeliveryInfo { return t.delivered }

// deliver must not block: a plugin may add and read in one goroutine. More
// outstanding metrics than announced are a fault of the plugin.
func (t *tracking) deliver(info telegraf.DeliveryInfo) {
	select {
	case t.delivered <- info:
	default:
		t.log.Errorf("Plugin tracks more than the %d metrics it announced", cap(t.delivered))
	}
}
