package port

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/agp-net/telegraf-agp/agp/steer/ethtool"
)

// Report says what was done to put one port back.
type Report struct {
	Interface string
	Restored  []string // properties that have their old value again
	Left      []string // properties that somebody else has changed since: left as they are
	Absent    bool     // the interface is not here; a journal of hardware is kept until it is back
	Busy      error    // another process holds the port, it will put it back: a BusyError
}

// Empty says that there was nothing to do.
func (r Report) Empty() bool {
	return len(r.Restored) == 0 && len(r.Left) == 0 && !r.Absent && r.Busy == nil
}

func (r Report) String() string {
	var s []string
	if len(r.Restored) > 0 {
		s = append(s, "put back: "+strings.Join(r.Restored, ", "))
	}
	if len(r.Left) > 0 {
		s = append(s, "changed by somebody else, left: "+strings.Join(r.Left, ", "))
	}
	if r.Absent {
		s = append(s, "the interface is gone")
	}
	if r.Busy != nil {
		s = append(s, r.Busy.Error())
	}
	if len(s) == 0 {
		s = append(s, "nothing to put back")
	}
	return r.Interface + ": " + strings.Join(s, "; ")
}

// maxPasses bounds the repeats of a restore: a change can undo another one (new
// numbers of queues reset the table in some drivers), never more than once.
const maxPasses = 3

// mine says whether the present value of p is there because of us. What a change that
// was cut off led to has not been noted; drivers have a few ways.
func (j *journal) mine(p property, v value) bool {
	if j.ours(p, v) {
		return true
	}
	switch {
	case p == rings && j.Pending == rings:
		return slices.ContainsFunc(j.Ours[rings], func(asked value) bool { return roundedTo(v, asked) })
	case p == indirection && (j.Pending == channels || j.Pending == indirection):
		return even(state{indirection: v}.table(), 0)
	case p == rssKey:
		return j.Pending == channels
	case p.is(rule):
		return j.Pending == channels && v == absent
	}
	return false
}

// touched are the properties that may have changed because of us.
func (j *journal) touched() []property {
	list := properties(j.Ours)
	if j.Pending == channels {
		for _, p := range properties(j.Before) {
			if (p == rssKey || p == indirection || p.is(rule)) && !slices.Contains(list, p) {
				list = append(list, p)
			}
		}
	}
	return list
}

// foreignRules says whether there are rules of somebody else, which go when the switch
// for rules is turned off.
func (j *journal) foreignRules(cur reading) bool {
	return slices.ContainsFunc(cur.rules, func(r ethtool.Spec) bool { return !j.ours(ruleAt(r.Location()), encode(r)) })
}

// rank is the order in which properties are put back: rules that point to queues go
// before the queues do, features that rules need go last.
func rank(p property, to value) int {
	switch {
	case p.is(rule) && to == absent:
		return 0
	case p.is(hashFields):
		return 1
	case p == rssKey:
		return 2
	case p == indirection:
		return 3
	case p == channels:
		return 4
	case p == rings:
		return 5
	case p.is(feature):
		return 6
	}
	return 7
}

// undo gives the properties that we have changed the value that they have in target.
// It does what can be done even if some of it fails. save writes the journal; where it
// cannot (a full disk), the older one on the disk still says what was before, so that
// is no reason to stop.
func undo(d device, j *journal, target state, save func() error) (Report, error) {
	rep := Report{Interface: j.Link.Name}
	target = maps.Clone(target)
	features := j.features()
	cur, err := read(d, features)
	if err != nil {
		return rep, err
	}
	var todo, wrong []property
	for _, p := range j.touched() {
		to, known := target.at(p)
		now, readable := cur.at(p)
		switch {
		case !readable && j.rebooted: // another driver or version, with its own settings
		case !known || !readable:
			err = errors.Join(err, fmt.Errorf("%s: %w", p, cur.reason(p)))
		case now != to && (!j.mine(p, now) || p == feature+ntupleRules && j.foreignRules(cur)):
			rep.Left = append(rep.Left, string(p))
		case now != to:
			todo, wrong = append(todo, p), append(wrong, p)
		case p == indirection:
			todo = append(todo, p) // the same values, but perhaps no longer the driver's own
		}
	}
	slices.SortStableFunc(todo, func(a, b property) int {
		return rank(a, target.get(a)) - rank(b, target.get(b))
	})

	evenTarget := even(target.table(), target.queues())
	if foreign := slices.Contains(rep.Left, string(channels)); foreign && slices.Contains(todo, indirection) {
		// The table has to go with the number of queues that somebody else wants.
		switch {
		case evenTarget:
			table := make([]uint32, len(cur.table()))
			for i := range table {
				table[i] = uint32(i % max(cur.queues(), 1))
			}
			target[indirection] = encode(table)
		case !fits(target.table(), cur.queues()):
			todo = slices.DeleteFunc(todo, func(p property) bool { return p == indirection })
			wrong = slices.DeleteFunc(wrong, func(p property) bool { return p == indirection })
			rep.Left = append(rep.Left, string(indirection))
		}
	}

	failed := map[property]error{}
	var serr error
	for pass := range maxPasses {
		for _, p := range todo {
			now, to := cur.get(p), target.get(p)
			giveBack := p == indirection && evenTarget && (pass == 0 || now != to && pass < maxPasses-1)
			wait := p == indirection && !fits(target.table(), cur.queues()) // for the queues
			if (now == to || wait) && !giveBack {
				continue
			}
			j.Pending = p
			j.add(p, to)
			serr = errors.Join(serr, save())
			given := giveBack && d.SetRSS(ethtool.RSSChange{DefaultIndirection: true}) == nil
			if !given && now != to && !wait {
				failed[p] = write(d, p, to)
			}
			was := cur
			var rerr error
			if cur, rerr = read(d, features); rerr != nil {
				return rep, errors.Join(err, rerr)
			}
			// What changed with it is ours now, and put right in the next pass, even if it
			// was somebody else's.
			for q := range union(was.state, cur.state) {
				if q == p || was.get(q) == cur.get(q) {
					continue
				}
				j.add(q, cur.get(q))
				if !slices.Contains(todo, q) {
					target[q] = was.get(q)
					todo = append(todo, q)
				}
			}
		}
	}
	j.Pending = ""
	for _, p := range todo {
		now, to := cur.get(p), target.get(p)
		switch {
		case now != to && failed[p] != nil:
			err = errors.Join(err, fmt.Errorf("%s: %w", p, failed[p]))
		case now != to:
			err = errors.Join(err, fmt.Errorf("%s is %.60s instead of %.60s", p, now, to))
		case slices.Contains(wrong, p):
			rep.Restored = append(rep.Restored, string(p))
		}
	}
	if err != nil {
		err = fmt.Errorf("%s: %w: %w", j.Link.Name, ErrNotRestored, errors.Join(err, serr))
	}
	return rep, err
}

// features are the names of the features that j speaks of.
func (j *journal) features() (names []string) {
	for _, p := range properties(j.Ours) {
		if p.is(feature) {
			names = append(names, p.arg())
		}
	}
	return names
}

// settle puts a port back as it was before its journal began, and removes the
// journal. The caller holds the lock of the port.
func settle(d device, st store, path string, j *journal) (Report, error) {
	save := func() error { return st.write(path, j) }
	rep, err := undo(d, j, j.Before, save)
	if err != nil {
		return rep, errors.Join(err, save())
	}
	return rep, st.remove(path)
}

// locate finds the interface of a journal. gone says that it can never come back
// with what the journal would undo.
func locate(k kernel, j *journal) (l link, found, gone bool, err error) {
	here := j.Boot == k.Boot() && j.Netns == k.Netns()
	if here {
		l, err := k.LinkByIndex(j.Link.Index)
		if err == nil && l.Driver == j.Link.Driver && l.Bus == j.Link.Bus {
			return l, true, false, nil
		}
		if err != nil && !errors.Is(err, ErrNoInterface) {
			return l, false, false, err
		}
	}
	if !j.Link.physical() {
		return l, false, here && !j.Moved || j.Boot != k.Boot(), nil
	}
	all, err := k.Links()
	if err != nil {
		return l, false, false, err
	}
	all = slices.DeleteFunc(all, func(l link) bool { return !l.same(j.Link) })
	switch len(all) {
	case 0:
		return l, false, false, nil
	case 1:
		return all[0], true, false, nil
	}
	return l, false, false, fmt.Errorf("%s: %w: %d interfaces have its hardware address %s",
		j.Link.Name, ErrJournal, len(all), j.Link.Address)
}

// RestoreAll puts back every port whose journal is in a directory, but for those that
// another process holds. It is what the plugin calls at its start and after an engine
// has ended in whatever way. It may be called any number of times.
func RestoreAll(stateDir string) ([]Report, error) {
	st := store{dir: stateDir}
	if paths, err := st.list(); len(paths) == 0 {
		return nil, err
	}
	k, err := openLinux()
	if err != nil {
		return nil, err
	}
	defer k.Close()
	return restoreAll(k, st, nil)
}

// restoreAll works on the journals whose interface is wanted, all if want is nil. If
// want is given, the caller holds the lock of that interface.
func restoreAll(k kernel, st store, want *link) (reps []Report, errs error) {
	paths, err := st.list()
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		rep, err := restoreOne(k, st, path, want)
		errs = errors.Join(errs, err)
		if !rep.Empty() {
			reps = append(reps, rep)
		}
	}
	return reps, errs
}

func restoreOne(k kernel, st store, path string, want *link) (rep Report, err error) {
	j, err := st.read(path)
	if errors.Is(err, os.ErrNotExist) {
		return rep, nil // its holder has just finished
	}
	if err != nil {
		if want != nil && !concerns(path, *want) {
			err = nil // RestoreAll says so
		}
		return rep, err
	}
	l, found, gone, err := locate(k, j)
	rep.Interface = j.Link.Name
	switch {
	case gone:
		rep.Absent = true
		return rep, st.remove(path)
	case want != nil && (!found || l.Index != want.Index):
		return Report{}, nil
	case err != nil:
		return rep, err
	case !found:
		rep.Absent = true
		return rep, nil
	}
	if want == nil {
		lock, err := acquire(k, j.LockDir, l)
		if errors.Is(err, ErrBusy) {
			rep.Busy = err
			return rep, nil
		}
		if err != nil {
			return rep, err
		}
		defer lock.release()
		// Until the lock was ours, its holder may have written more or finished.
		if j, err = st.read(path); err != nil {
			if errors.Is(err, os.ErrNotExist) {
				return Report{}, nil
			}
			return rep, err
		}
	}
	if j.Boot != k.Boot() {
		j.rebooted, j.Pending = true, "" // what a driver was about to do then is over
	}
	j.Link.Name = l.Name
	return settle(k.Device(l.Index), st, path, j)
}

// concerns says by its name whether an unreadable journal may be of this interface.
func concerns(path string, l link) bool {
	part := strings.SplitN(strings.TrimSuffix(filepath.Base(path), journalSuffix), "-", 3)
	return len(part) != 3 || part[1] == strconv.Itoa(l.Index) || part[2] == l.Name
}
